#!/bin/bash
# max-size.sh FILE MB: fails when FILE is larger, so that a size budget is one.
set -eu
size=$(stat -c %s "$1")
if [ "$size" -gt $(($2 * 1000000)) ]; then
	echo "$1 is $((size / 1000000)) MB, over its budget of $2 MB" >&2
	exit 1
fi
