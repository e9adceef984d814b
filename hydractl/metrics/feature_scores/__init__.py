"""Out-of-distribution scores on features, which enter the final linear classifier: higher = more OOD.

``scores`` declares all of them, and ``vilu`` is the network of the one that is trained.
"""
