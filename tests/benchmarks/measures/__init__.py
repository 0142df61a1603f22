"""What is worked out of rounds: bytes beside the plan's, troubled rounds beside others, growth of memory."""
