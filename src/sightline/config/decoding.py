"""Text of files that people have made, on any system."""

from __future__ import annotations

import codecs


def decoded(content: bytes) -> str:
    """Text of a file that a person has made: in UTF-8, or in what its byte order mark says, which is left out.

    Raises:
        UnicodeDecodeError: it is in no such encoding.
    """
    # The mark of UTF-32 begins with that of UTF-16.
    for mark, encoding in (
        (codecs.BOM_UTF32_LE, "utf-32"),
        (codecs.BOM_UTF32_BE, "utf-32"),
        (codecs.BOM_UTF16_LE, "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16"),
    ):
        if content.startswith(mark):
            return content.decode(encoding)
    return content.decode("utf-8-sig")
