"""What is trained in the place of whole weights: few numbers that adapt them, one file each."""
