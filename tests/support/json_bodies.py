"""Bodies on both sides of what is JSON, each with what Spark's strict parser says of it."""

from __future__ import annotations

JSON = [
    b"{}", b"[]", b"1", b'"a"', b"null", b"true", b"-0", b"-0.0", b"0e0", b"-1", b"1e5", b"1E+5", b"1.0E-2",
    b"1e400",
    b"-1e400", b"1e-400", b"1.7976931348623159e308", b"9" * 40, b"0." + b"1" * 60, b"12345678901234567890",
    b'{"a":1,"a":2}', b'{"":1}', b"\n\r\t {} \n", b'{ "a" : [ ] }', b'"\x7f"', b'"\xc3\xa9"', b'"\xe2\x80\xa8"',
    b'"\xf0\x9f\x98\x80"', b'"\xef\xbf\xbf"', b'"\\u0000"', b'"\\ud800"', b'"\\udc00\\ud800"', b'{"\\ud800":1}',
    b'"\\uD83D\\uDE00"', b'"\\b\\f\\n\\r\\t\\"\\\\\\/"', b"[" * 50 + b"]" * 50, b'{"a":' * 300 + b"1" + b"}" * 300,
    b'"' + b"x" * 200_000 + b'"', b"[" + b"{}," * 5_000 + b"[]]",
    b"[" + b"1" * 400 + b"]", b'["' + b'","'.join([b"long"] * 5_000) + b'"]',
]  # fmt: skip
"""One JSON value each."""
OTHER = [
    b"", b" ", b"tru", b"True", b"None", b"undefined", b"NaN", b"[NaN]", b"Infinity", b"[-Infinity]", b"+1",
    b"-", b"--1",
    b"01", b"-01", b"00", b"1.", b".5", b"1e", b"1e+", b"1e5.5", b"1_000", b"0x10", b"\xd9\xa1", b"1\xd9\xa1",
    b'"\x00"', b'"\x1f"', b'"\t"', b'"a\nb"', b"\x0c1", b"\x0b1", b"\x1c1", b"\xc2\x851", b"\xe2\x80\x8b1",
    b"\xef\xbb\xbf{}", b"{}\xef\xbb\xbf", b'"\xff"', b'"\xed\xa0\x80"', b'"\xc0\x80"', b'"\xf4\x90\x80\x80"',
    b"\xff\xfe1\x00", b"{'a':1}", b"{a:1}", b'{"a":1,}', b"[1,]", b"[,1]", b"1,2", b"1 2", b"{} {}", b"]", b"],[",
    b'"a","b"', b"/*x*/1", b"//x\n1", b'"\\x"', b'"\\u12"', b'"\\u+123"', b'"\\u 123"', b"\"\\'\"", b"[1}",
    b'{"a"}',
    b'{"a":}', b"{1:2}", b'"a\\', b'"a', b'{"a":1', b"\x00", b"1\x00", b"{}\x00", b'{"a":"b"}x', b"5 apples",
    b"x" * 9_000,
]  # fmt: skip
"""Not one JSON value in UTF-8."""
UNUSUAL = [
    b"[" * 2_000 + b"]" * 2_000, b"9" * 2_000, b"0." + b"1" * 2_000, b'{"' + b'\\"' * 30_000 + b'":1}',
    b'{"' + b"n" * 60_000 + b'":1}',
    b'"' + b"x" * (1 << 20) + b'"', b"[" * 500, b'{"a":' * 450 + b"1" + b"}" * 450,
]  # fmt: skip
"""Beyond a limit of Spark's parser, or near it."""
