package image

import (
	"slices"
	"strings"
	"syscall"
)

// tree is a root file system in memory, without the bytes of its files. It is
// the only place where names out of an archive are resolved: a "..", an
// absolute name or a symlink leads around inside it and nowhere else, because
// there is nothing else.
type tree struct {
	root  *node
	lim   Limits
	layer uint16 // number of the layer being applied, from 1

	entries int64 // names ever made, against lim.MaxEntries
	names   int64 // bytes of them, against maxNames
	dropped int64 // devices, FIFOs, sockets and unknown things left out
}

// node is one inode. Hard links are several entries with one node.
type node struct {
	mode     uint16 // type and permission bits, as stat(2) has them
	uid, gid uint32
	mtime    int64 // seconds
	nsec     uint32
	target   string // of a symlink
	off      int64  // of file data in the spool
	size     int64  // of file data
	children map[string]entry

	// Set by the EROFS writer.
	nid    uint64
	nlink  uint32
	block  uint32
	sorted []string
}

// entry is a name in a directory. The layer belongs to the name: a hard link
// made by an upper layer to a file of a lower one is the upper layer's.
type entry struct {
	n     *node
	layer uint16
}

const typeMask = syscall.S_IFMT

func (n *node) isDir() bool     { return n.mode&typeMask == syscall.S_IFDIR }
func (n *node) isSymlink() bool { return n.mode&typeMask == syscall.S_IFLNK }
func (n *node) isRegular() bool { return n.mode&typeMask == syscall.S_IFREG }

func newDir(perm uint16) *node {
	return &node{mode: syscall.S_IFDIR | perm, children: map[string]entry{}}
}

func newTree(lim Limits) *tree { return &tree{root: newDir(0o755), lim: lim, layer: 1} }

// splitName turns a name of an archive into clean components. "." and empty
// ones go; ".." stays, and never climbs above the root.
func splitName(name string) ([]string, error) {
	var parts []string
	for p := range strings.SplitSeq(name, "/") {
		switch {
		case p == "" || p == ".":
			continue
		case p == "..":
			if len(parts) > 0 {
				parts = parts[:len(parts)-1]
			}
			continue
		case len(p) > maxName:
			return nil, failf(failArchive, "name of %d bytes is over %d", len(p), maxName)
		case strings.IndexByte(p, 0) >= 0:
			return nil, failf(failArchive, "name %.80q has a NUL", p)
		}
		if parts = append(parts, p); len(parts) > maxDepth {
			return nil, failf(failArchive, "name %.80q is over %d directories deep", name, maxDepth)
		}
	}
	return parts, nil
}

// dir walks to the directory that parts name, following symlinks as a process
// in a chroot would. With create it makes missing directories, also where a
// symlink dangles; without, a missing one gives nil.
func (t *tree) dir(parts []string, create bool) (*node, error) {
	stack := []*node{t.root}
	todo := slices.Clone(parts)
	// Both budgets end symlink loops; steps also ends long targets in a row.
	for links, steps := 0, 0; len(todo) > 0; steps++ {
		if steps > 8*maxDepth {
			return nil, failf(failArchive, "too many steps to resolve a name")
		}
		name, here := todo[0], stack[len(stack)-1]
		todo = todo[1:]
		if name == ".." {
			stack = stack[:max(1, len(stack)-1)]
			continue
		}
		next := here.children[name].n
		switch {
		case next == nil && !create:
			return nil, nil
		case next == nil:
			next = newDir(0o755)
			if err := t.put(here, name, next); err != nil {
				return nil, err
			}
			fallthrough
		case next.isDir():
			if create { // what is made below keeps the way to it
				here.children[name] = entry{next, t.layer}
			}
			if stack = append(stack, next); len(stack) > maxDepth+1 {
				return nil, failf(failArchive, "over %d directories deep", maxDepth)
			}
		case next.isSymlink():
			if links++; links > maxLinks {
				return nil, failf(failArchive, "over %d symlinks on the way to one name", maxLinks)
			}
			if next.target[0] == '/' {
				stack = stack[:1]
			}
			todo = append(splitTarget(next.target), todo...)
		default:
			return nil, failf(failArchive, "%.80q is used as a directory and is none", name)
		}
	}
	return stack[len(stack)-1], nil
}

// splitTarget keeps "..": it applies to where a symlink led, not to how its
// target is spelled.
func splitTarget(target string) []string {
	return slices.DeleteFunc(strings.Split(target, "/"), func(p string) bool { return p == "" || p == "." })
}

// put makes name in dir stand for n. A directory over a directory keeps what
// is in it; anything else replaces what was there, with all below it.
func (t *tree) put(dir *node, name string, n *node) error {
	if len(name) > maxName { // a component of a symlink target
		return failf(failArchive, "name of %d bytes is over %d", len(name), maxName)
	}
	if err := t.count(len(name) + len(n.target)); err != nil {
		return err
	}
	if old := dir.children[name].n; old != nil && old.isDir() && n.isDir() {
		n.children = old.children
		*old = *n
		n = old
	}
	dir.children[name] = entry{n, t.layer}
	return nil
}

// count charges one entry with so many bytes of names.
func (t *tree) count(bytes int) error {
	if t.entries++; t.entries > t.lim.MaxEntries {
		return failf(failLimit, "more than %d entries", t.lim.MaxEntries)
	}
	if t.names += int64(bytes); t.names > maxNames {
		return failf(failLimit, "more than %d bytes of names", int64(maxNames))
	}
	return nil
}

// hide removes what lower layers put at or below name, and keeps what the
// layer being applied has put there already.
func (t *tree) hide(dir *node, name string) {
	e := dir.children[name]
	if e.n == nil {
		return
	}
	if e.layer < t.layer {
		delete(dir.children, name)
		return
	}
	if e.n.isDir() {
		for child := range e.n.children {
			t.hide(e.n, child)
		}
	}
}

// mountPoints are directories that the sandbox mounts onto or writes into. An
// image that has a symlink or a file there would lead those mounts elsewhere
// (rows 33, 34, 36), so it gets a fresh directory instead. The others are only
// made where an image has nothing.
var mountPoints = []struct {
	name    string
	perm    uint16
	replace bool
}{
	{"dev", 0o755, true}, {"proc", 0o555, true}, {"sys", 0o555, true},
	{"tmp", 0o1777, true}, {"run", 0o755, true}, {"etc", 0o755, true},
	{"mnt", 0o755, false}, {"root", 0o700, false}, {"var", 0o755, false},
}

// finish gives the tree the directories that every sandbox needs. It refuses
// a tree with nothing in it (row 39).
func (t *tree) finish() error {
	if !hasFile(t.root) {
		return failf(failEmpty, "the image has no files")
	}
	for _, m := range mountPoints {
		if n := t.root.children[m.name].n; n == nil || m.replace && !n.isDir() {
			t.root.children[m.name] = entry{newDir(m.perm), t.layer}
		}
	}
	if v := t.root.children["var"].n; v.isDir() && v.children["tmp"].n == nil {
		v.children["tmp"] = entry{newDir(0o1777), t.layer}
	}
	return nil
}

// hasFile recurses at most maxDepth deep, because dir makes nothing deeper.
func hasFile(n *node) bool {
	for _, e := range n.children {
		if !e.n.isDir() || hasFile(e.n) {
			return true
		}
	}
	return false
}
