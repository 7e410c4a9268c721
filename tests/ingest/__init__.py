"""Reports: reading, classifying, joining."""
