max_iters = 7
