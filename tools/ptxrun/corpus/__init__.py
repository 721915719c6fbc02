"""What instructions do, recorded on a GPU, and compared with what ptxrun says they do.

python -m ptxrun.corpus record FILE     runs every case that this GPU can, in under a minute
python -m ptxrun.corpus record FILE --emulated
python -m ptxrun.corpus unproven        the kinds of case that no record confirms

A record of a GPU goes to records/NAME.npz beside this file; tests/ptxrun/test_corpus.py compares
ptxrun with every record that is there. Recording needs Python with numpy and a driver: no compiler,
no torch, nothing else of this project.
"""
