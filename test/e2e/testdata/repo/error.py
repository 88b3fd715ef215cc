"""Fails at once, on a line that is known."""

loss = float("nan")
raise ValueError(f"the loss is {loss} at step 12")
