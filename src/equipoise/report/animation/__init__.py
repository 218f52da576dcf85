"""Loads over a training as a moving picture (GIF) or a still one (PNG), without a browser.

loads.py says what is drawn, equipoise.drawing draws it in pixels, files.py encodes it. There is no
imaging library among the dependencies, and none is needed: a heat map is rectangles of few colours,
so both formats come to a page of code each, and the same runs give the same bytes on every machine.
"""
