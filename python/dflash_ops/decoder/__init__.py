"""The reference decoder: the ops of this library, composed."""
