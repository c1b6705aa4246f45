"""scikit-learn's 1,797 real handwritten digits, 8 by 8 pixels, through a small convolutional network."""
