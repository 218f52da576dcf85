"""canvas: rectangles and small text on a picture with a palette: a byte for each pixel."""

from __future__ import annotations

import numpy as np

from equipoise.drawing.palette import BLANK, INK

GLYPH_WIDTH, GLYPH_HEIGHT = 5, 7
_DRAWN = """
0=ehjlphe 1=4c4444e 2=eh1248v 3=v2421he 4=26aiv22 5=vgu11he 6=68guhhe 7=v124888
8=ehhehhe 9=ehhf12c a=00e1fhf b=gguhhhu c=00egghe d=11fhhhf e=00ehvge f=698s888
g=0fhhf1e h=ggmphhh i=40c444e j=20622ic k=ggikoki l=c44444e m=00qllhh n=00mphhh
o=00ehhhe p=00uhugg q=00djf11 r=00mpggg s=00ege1u t=88s8896 u=00hhhjd v=00hhha4
w=00hhlla x=00ha4ah y=00hhf1e z=00v248v A=ehhvhhh B=uhhuhhu C=ehggghe D=sihhhis
E=vgguggv F=vgguggg G=ehgnhhf H=hhhvhhh I=e44444e J=72222ic K=hikokih L=ggggggv
M=hrllhhh N=hhpljhh O=ehhhhhe P=uhhuggg Q=ehhhlid R=uhhukih S=fgge11u T=v444444
U=hhhhhhe V=hhhhha4 W=hhhllla X=hha4ahh Y=hhha444 Z=v1248gv /=01248g0 |=4444444
-=000v000 (=2488842 )=8422248 ,=0000c48 .=00000cc :=0cc0cc0 %=op248j3 _=000000v
√=7444kc4 ==00v0v00 +=044v440
"""
"""letter=rows: seven rows of five pixels, a digit of base 32 each"""
_GLYPHS = {pair[0]: pair[2:] for pair in _DRAWN.split()}
_UNKNOWN = "vhhhhhv"


class Canvas:
    """A picture to draw on; `pixels` (height, width) are places in the palette."""

    def __init__(self, width: int, height: int) -> None:
        self.pixels = np.full((height, width), BLANK, np.uint8)

    def fill_box(self, x: int, y: int, width: int, height: int, color: int) -> None:
        self.pixels[y : y + height, x : x + width] = color

    def write_text(self, words: str, x: int, y: int, color: int = INK, scale: int = 2) -> None:
        """In capitals and small letters of seven rows; a letter that is not known is a box."""
        for letter in words:
            if letter != " ":
                glyph = np.kron(glyph_pixels(letter), np.ones((scale, scale), bool))
                # what does not fit is left out
                room = self.pixels[y : y + len(glyph), x : x + glyph.shape[1]]
                room[glyph[: room.shape[0], : room.shape[1]]] = color
            x += (GLYPH_WIDTH + 1) * scale


def text_width(words: str, scale: int = 2) -> int:
    return len(words) * (GLYPH_WIDTH + 1) * scale


def glyph_pixels(letter: str) -> np.ndarray:
    """(7, 5) bool."""
    rows = [int(digit, 32) for digit in _GLYPHS.get(letter, _UNKNOWN)]
    return np.array([[row >> bit & 1 for bit in (4, 3, 2, 1, 0)] for row in rows], bool)
