// CPU kernels of the tree ops: torch-free; threads belong to *_op.cpp.
#pragma once

#include "tree/params.h"

namespace dflash {

// First what rows outside every request hold, for rows begin .. end; then requests begin .. end.
void tree_metadata_fill_cpu(const TreeMetadataParams& p, int64_t begin, int64_t end);
void tree_metadata_cpu(const TreeMetadataParams& p, int64_t begin, int64_t end);

// Requests begin .. end.
void tree_to_paths_cpu(const TreeToPathsParams& p, int64_t begin, int64_t end);
void tree_from_retrieve_cpu(const TreeFromRetrieveParams& p, int64_t begin, int64_t end);
void tree_from_mask_fill_cpu(const TreeFromMaskParams& p, int64_t begin, int64_t end);  // rows
void tree_from_mask_cpu(const TreeFromMaskParams& p, int64_t begin, int64_t end);

// First each request's tree at b * max_nodes, then all of them moved together.
void build_tree_cpu(const BuildTreeParams& p, int64_t begin, int64_t end);
void pack_trees_cpu(const BuildTreeParams& p);

}  // namespace dflash
