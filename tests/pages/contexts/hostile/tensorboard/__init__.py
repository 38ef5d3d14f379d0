"""What a user puts in the place of TensorBoard: the context directory comes first on Python's path."""
