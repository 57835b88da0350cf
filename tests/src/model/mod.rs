//! Independent models of what the library computes.
