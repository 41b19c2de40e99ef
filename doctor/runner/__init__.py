"""Run kernel programs and commands in another interpreter, and survive them."""
