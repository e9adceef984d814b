"""Out-of-distribution scores on features, the input of the final linear classifier: higher = more OOD.

``scores`` declares all of them; ``vilu`` is the network of the two scores that are trained.
"""
