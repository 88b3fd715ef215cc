"""Stands in for VideoLLaMA2, whose repository the tests may not reach."""
