"""The evaluation behind ``hydractl eval``: one row of metrics for each model, measured on several data sets."""
