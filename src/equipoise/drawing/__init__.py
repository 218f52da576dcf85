"""Pictures of loads in plain pixels, without an imaging library or a browser.

A heat map is rectangles of few colours, so a picture is an array with a byte for each pixel, which
is a place in one palette. report/animation encodes such arrays as GIF and PNG; trackers of a
training take them as arrays of red, green and blue.

    palette     the colours of loads, and one scale for all pictures
    canvas      rectangles and small text
    scale       the scale as it stands at the foot of a picture
    heat_map    loads of every layer and expert in one step
"""
