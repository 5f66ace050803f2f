#!/usr/bin/env bash
# A browser for the page tests: one on the PATH, else Debian's where it may be installed, else Playwright's own.
# Finding none is no error: the tests that need one are then skipped by name.
set -u
python="$1"
for name in chromium chromium-browser google-chrome; do
  command -v "$name" >/dev/null 2>&1 && exit 0
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  (apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium) >/dev/null 2>&1 && exit 0
fi
timeout 300 "$python" -m playwright install chromium >/dev/null 2>&1 || echo "no browser found: page tests will be skipped"
exit 0
