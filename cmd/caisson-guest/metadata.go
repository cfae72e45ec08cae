package main

import (
	"bytes"
	"errors"
	"net/http"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Metadata of a file: headers "X-Metadata-key: value", kept as extended
// attributes. The bounds are those of E2B's envd.
const (
	metadataHeader = "X-Metadata-"
	metadataAttr   = "user.e2b."
	maxMetaKey     = 246
	maxMetaTotal   = 4096
)

// parseMetadata reads the headers of an upload.
func parseMetadata(h http.Header) (map[string]string, error) {
	out := map[string]string{}
	total := 0
	for name, values := range h {
		key, ok := strings.CutPrefix(name, metadataHeader)
		if !ok {
			continue
		}
		key = strings.ToLower(key)
		value := values[len(values)-1]
		if key == "" || len(key) > maxMetaKey || !printable(key) || !printable(value) {
			return nil, refuse("bad metadata %q: key and value are printable ASCII, a key has at most %d bytes", clip(key), maxMetaKey)
		}
		if total += len(key) + len(value); total > maxMetaTotal {
			return nil, refuse("bad metadata: more than %d bytes", maxMetaTotal)
		}
		out[key] = value
	}
	return out, nil
}

func printable(s string) bool {
	for i := range len(s) {
		if s[i] < 0x20 || s[i] > 0x7e {
			return false
		}
	}
	return true
}

// readMetadata returns the metadata of what name leads to, or nothing.
func readMetadata(name string) map[string]string {
	keys := attrKeys(func(b []byte) (int, error) { return unix.Listxattr(name, b) })
	if len(keys) == 0 {
		return nil
	}
	out := map[string]string{}
	buf := make([]byte, maxMetaTotal)
	for _, k := range keys {
		n, err := unix.Getxattr(name, metadataAttr+k, buf)
		if err == nil && printable(string(buf[:n])) {
			out[k] = string(buf[:n])
		}
	}
	return out
}

// writeMetadata replaces the whole set.
func writeMetadata(f *os.File, meta map[string]string) error {
	fd := int(f.Fd())
	for _, k := range attrKeys(func(b []byte) (int, error) { return unix.Flistxattr(fd, b) }) {
		if _, keep := meta[k]; keep {
			continue
		}
		if err := unix.Fremovexattr(fd, metadataAttr+k); err != nil && !errors.Is(err, unix.ENODATA) {
			return err
		}
	}
	for k, v := range meta {
		if err := unix.Fsetxattr(fd, metadataAttr+k, []byte(v), 0); err != nil {
			return err
		}
	}
	return nil
}

// attrKeys lists the metadata keys; a list longer than any that we write is
// somebody else's and is not read.
func attrKeys(list func([]byte) (int, error)) []string {
	buf := make([]byte, 64<<10)
	n, err := list(buf)
	if err != nil || n == 0 {
		return nil
	}
	var keys []string
	for name := range bytes.SplitSeq(buf[:n], []byte{0}) {
		k, ok := strings.CutPrefix(string(name), metadataAttr)
		if ok && k != "" && printable(k) {
			keys = append(keys, k)
		}
	}
	return keys
}
