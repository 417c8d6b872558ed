"""Small programs that show evenly at work; the tests run them."""
