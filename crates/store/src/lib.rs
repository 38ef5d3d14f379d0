//! A key-value store that speaks PyTorch's TCPStore protocol, so that unmodified training scripts meet through it.
