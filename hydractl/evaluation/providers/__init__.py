"""What the rows of an evaluation get their logits from: a model that runs, or predictions of an earlier run.

``interface`` says what an evaluation needs of them.
"""
