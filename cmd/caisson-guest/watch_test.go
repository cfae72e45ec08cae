package main

import (
	"encoding/binary"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"caisson.dev/caisson/internal/guest/filesystem"
)

func record(wd int32, mask uint32, name string, size int) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(wd))
	b = binary.NativeEndian.AppendUint32(b, mask)
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = binary.NativeEndian.AppendUint32(b, uint32(size))
	return append(b, append([]byte(name), make([]byte, max(size-len(name), 0))...)...)
}

func TestParseInotify(t *testing.T) {
	b := append(record(1, unix.IN_CREATE, "a", 16), record(2, unix.IN_MODIFY, "", 0)...)
	want := []inotifyEvent{{1, unix.IN_CREATE, "a"}, {2, unix.IN_MODIFY, ""}}
	got := parseInotify(append(b, record(3, 1, "cut", 1<<20)[:20]...))
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(inotifyEvent{})); diff != "" {
		t.Error(diff)
	}
}

func FuzzParseInotify(f *testing.F) {
	f.Add(record(1, 2, "name", 16))
	f.Add(record(1, 2, "", -1))
	f.Fuzz(func(t *testing.T, b []byte) {
		if n := len(parseInotify(b)); n > len(b)/unix.SizeofInotifyEvent {
			t.Errorf("%d events in %d bytes", n, len(b))
		}
	})
}

func TestKindsComeInAFixedOrder(t *testing.T) {
	const (
		create = filesystem.EventType_EVENT_TYPE_CREATE
		rename = filesystem.EventType_EVENT_TYPE_RENAME
		chmod  = filesystem.EventType_EVENT_TYPE_CHMOD
		write  = filesystem.EventType_EVENT_TYPE_WRITE
		remove = filesystem.EventType_EVENT_TYPE_REMOVE
	)
	for mask, want := range map[uint32][]filesystem.EventType{
		unix.IN_MOVED_TO | unix.IN_ISDIR: {create},
		unix.IN_MOVED_FROM:               {rename},
		unix.IN_DELETE_SELF:              {remove},
		unix.IN_IGNORED:                  nil,
		unix.IN_CREATE | unix.IN_MOVED_FROM | unix.IN_ATTRIB | unix.IN_MODIFY | unix.IN_DELETE: {create, rename, chmod, write, remove},
	} {
		if diff := cmp.Diff(want, kinds(mask)); diff != "" {
			t.Errorf("%#x: %s", mask, diff)
		}
	}
}
