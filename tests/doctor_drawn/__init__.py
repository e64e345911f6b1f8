"""Draw installations of cuDNN, break them at random, and judge what the doctor says about each."""
