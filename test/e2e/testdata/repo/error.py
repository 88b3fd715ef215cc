"""Fails at once, on a known line."""

loss = float("nan")
raise ValueError(f"the loss is {loss} at step 12")
