#!/usr/bin/env bash
# Takes pictures of the page at three sizes, light and dark, with no, few and many jobs, in good and in bad times, and puts
# the two that the guides show into docs/images. Usage: tests/screenshots.sh [FOLDER]; FOLDER is for all of them, by default target/screenshots.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-target/screenshots}
mkdir -p "$folder" docs/images
folder=$(cd "$folder" && pwd)
CRONKEEPER_SCREENSHOTS=$folder cargo test --locked --test it -- --ignored --exact \
    page::screenshots::the_page_has_its_picture_taken
for text in "$folder"/*.png.base64; do
    # The browser compresses in haste; the pictures are the same afterwards, and smaller.
    python3 -c '
import base64, struct, sys, zlib
png, out, pixels = base64.b64decode(sys.stdin.read()), [], b""
at = 8
while at < len(png):
    (length,), kind = struct.unpack(">I", png[at:at + 4]), png[at + 4:at + 8]
    data, at = png[at + 8:at + 8 + length], at + 12 + length
    pixels += data if kind == b"IDAT" else b""
    if kind in (b"IHDR", b"IEND"):
        out.append((kind, data))
out.insert(1, (b"IDAT", zlib.compress(zlib.decompress(pixels), 9)))
chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
sys.stdout.buffer.write(png[:8] + b"".join(chunk(*each) for each in out))
' <"$text" >"${text%.base64}"
    rm "$text"
done
for picture in desktop-light phone-dark; do
    cp "$folder/usual-$picture.png" "docs/images/$picture.png"
done
ls -l "$folder"
