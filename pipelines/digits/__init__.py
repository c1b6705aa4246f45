"""Classifies scikit-learn's 1,797 handwritten digits, 8 by 8 pixels, with a small convolutional network."""
