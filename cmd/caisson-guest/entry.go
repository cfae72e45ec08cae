package main

import (
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"google.golang.org/protobuf/types/known/timestamppb"

	"caisson.dev/caisson/internal/guest/filesystem"
)

// names turns ids into names, read once for each request.
type names struct{ users, groups map[uint32]string }

// newNames runs on a thread in the users' root.
func newNames() *names {
	return &names{parseNames(readTable("/etc/passwd")), parseNames(readTable("/etc/group"))}
}

func nameOf(m map[uint32]string, id uint32) string {
	if n, ok := m[id]; ok {
		return text(n)
	}
	return strconv.FormatUint(uint64(id), 10)
}

// entryInfo describes name itself, and for a link also where it leads: type
// and mode are then the target's, as E2B's clients expect.
func entryInfo(name string, n *names) (*filesystem.EntryInfo, error) {
	st, err := os.Lstat(name)
	if err != nil {
		return nil, err
	}
	e := &filesystem.EntryInfo{
		Name:         text(path.Base(name)),
		Path:         text(name),
		Type:         fileType(st.Mode()),
		Size:         st.Size(),
		Mode:         uint32(st.Mode().Perm()),
		Permissions:  st.Mode().String(),
		ModifiedTime: timestamppb.New(st.ModTime()),
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		e.Owner, e.Group = nameOf(n.users, sys.Uid), nameOf(n.groups, sys.Gid)
	}
	if st.Mode()&os.ModeSymlink != 0 {
		followLink(e, name)
	}
	if e.Type == filesystem.FileType_FILE_TYPE_FILE {
		e.Metadata = readMetadata(name)
	}
	return e, nil
}

// text makes a name of the file system fit to be sent: there it may be any
// bytes, in a message it must be UTF-8 or nothing can be sent at all.
func text(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

func followLink(e *filesystem.EntryInfo, name string) {
	target, err := filepath.EvalSymlinks(name)
	if err != nil {
		target = name
	}
	target = text(target)
	e.SymlinkTarget = &target
	e.Type = filesystem.FileType_FILE_TYPE_UNSPECIFIED // leads nowhere
	if st, err := os.Stat(name); err == nil {
		e.Type, e.Mode = fileType(st.Mode()), uint32(st.Mode().Perm())
	}
}

func fileType(m os.FileMode) filesystem.FileType {
	switch {
	case m.IsRegular():
		return filesystem.FileType_FILE_TYPE_FILE
	case m.IsDir():
		return filesystem.FileType_FILE_TYPE_DIRECTORY
	case m&os.ModeSymlink != 0:
		return filesystem.FileType_FILE_TYPE_SYMLINK
	default:
		return filesystem.FileType_FILE_TYPE_UNSPECIFIED
	}
}
