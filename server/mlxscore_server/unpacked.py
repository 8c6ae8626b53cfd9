"""A body that was sent compressed, unpacked in bounded pieces: a small one may stand for gigabytes."""

import zlib

from mlxscore_server.errors import BodyTooLarge, InvalidRequest

ENCODINGS = ("gzip", "deflate")
"""What `Content-Encoding` may say."""

# So much is unpacked at once: zlib lets other threads run meanwhile, and between two pieces.
_PIECE = 2**18
_GZIP, _ZLIB, _RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS


def unpack(packed: bytes | bytearray, encoding: str, max_bytes: int) -> bytearray:
    """What one of `ENCODINGS` holds. Raises BodyTooLarge, with no more than `max_bytes` in memory, and
    InvalidRequest where it holds nothing."""
    unpacked = bytearray()
    rest: bytes | memoryview = memoryview(packed)
    kind = _GZIP if encoding == "gzip" else _deflate(packed)
    while True:
        part = zlib.decompressobj(kind)
        while not part.eof:
            try:
                # One byte more than may be: so that what is just too large shows.
                piece = part.decompress(rest, min(_PIECE, max_bytes + 1 - len(unpacked)))
            except zlib.error:
                raise _bad(encoding, "it is something else") from None
            if not piece and not part.eof and not part.unconsumed_tail:
                raise _bad(encoding, "it ends too early")
            unpacked += piece
            if len(unpacked) > max_bytes:
                raise BodyTooLarge(
                    f"the body has more than {max_bytes} bytes once it is unpacked, the limit "
                    "(--max-request-bytes); send fewer items at once"
                )
            rest = part.unconsumed_tail
        rest = part.unused_data
        if not rest:
            return unpacked
        if kind != _GZIP:
            raise _bad(encoding, "more follows its end")
        # A gzip file may be several, one after the other.


def _deflate(packed: bytes | bytearray) -> int:
    """deflate means zlib's format; some clients send what is inside of that."""
    is_zlib = len(packed) >= 2 and packed[0] & 15 == 8 and (packed[0] << 8 | packed[1]) % 31 == 0
    return _ZLIB if is_zlib else _RAW


def _bad(encoding: str, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"the body is not what Content-Encoding: {encoding} says: {why}", code="invalid_encoding"
    )
