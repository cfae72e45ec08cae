package image

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"os"
	"slices"
)

// The EROFS form that gVisor's sentry mounts: blocks of 4096 bytes, no
// compression, no chunks, no extended attributes, and every file's data on
// block boundaries, because the sentry maps it (inline data makes exec fail).
// go-erofs always writes small files inline, so we have our own writer.
//
// Layout: block 0 with the superblock, inodes from block 1 on with symlink
// targets and small directories behind them, then large directories, then
// file data. Everything follows from the sorted tree, so equal trees give
// equal bytes: one fixed UUID, no build time.
const (
	blockBits   = 12
	blockSize   = 1 << blockBits
	superOffset = 1024
	superSize   = 128
	superMagic  = 0xe0f5e1e2
	inodeSize   = 64 // extended form
	slotSize    = 32 // unit of an inode number
	direntSize  = 12
	metaBlock   = 1
	firstNid    = 2 // readdir in C libraries skips inode number 0

	layoutPlain  = 0
	layoutInline = 2
	extended     = 1 // lowest bit of an inode's format

	compatChecksum = 1
)

// erofsWriter plans and writes one image. Its memory grows with the number of
// entries, not with their bytes.
type erofsWriter struct {
	t        *tree
	spool    io.ReaderAt
	progress func(done, total int64)

	order []planned // inodes as they lie in the image, parents first
	meta  int64     // bytes of the inode area
	block int64     // next free block
	data  int64     // bytes of file data
}

type planned struct {
	n, parent *node
	ino       uint32
}

// writeEROFS writes t to out, a new empty file, with file data from spool, and
// returns the size of the image.
func writeEROFS(out *os.File, t *tree, spool io.ReaderAt, progress func(done, total int64)) (int64, error) {
	w := &erofsWriter{t: t, spool: spool, progress: progress, meta: firstNid * slotSize}
	w.planInodes(t.root, t.root)
	w.block = metaBlock + blocks(w.meta)
	w.planData()
	if w.block > math.MaxUint32 {
		return 0, failf(failLimit, "image of %d blocks", w.block)
	}
	size := w.block * blockSize
	// One hole of the whole size; what stays zero is never written.
	if err := out.Truncate(size); err != nil {
		return 0, fmt.Errorf("cannot size image: %w", err)
	}
	for _, step := range []func(*os.File) error{w.writeSuper, w.writeInodes, w.writeDirs, w.writeData} {
		if err := step(out); err != nil {
			return 0, fmt.Errorf("cannot write image: %w", err)
		}
	}
	return size, nil
}

func blocks(bytes int64) int64 { return (bytes + blockSize - 1) / blockSize }

// planInodes gives every inode its place, directories before what is in them.
// It recurses at most maxDepth deep.
func (w *erofsWriter) planInodes(n, parent *node) {
	if n.nlink++; n.nlink > 1 {
		return // another name of a file that has its place
	}
	if n.isDir() {
		n.nlink = 2
		n.size, n.sorted = dirSize(n)
	} else if n.isSymlink() {
		n.size = int64(len(n.target))
	}
	need := int64(inodeSize)
	if n.inline() {
		need += n.size
	}
	// Neither an inode nor its inline data may cross a block.
	if w.meta%blockSize+need > blockSize {
		w.meta = (w.meta + blockSize - 1) &^ (blockSize - 1)
	}
	n.nid = uint64(w.meta / slotSize)
	w.meta += (need + slotSize - 1) &^ (slotSize - 1)
	w.order = append(w.order, planned{n, parent, uint32(len(w.order) + 1)})
	for _, name := range n.sorted {
		if c, ok := n.children[name]; ok {
			w.planInodes(c.n, n)
			if c.n.isDir() {
				n.nlink++
			}
		}
	}
}

// inline says whether the content lies right behind the inode.
func (n *node) inline() bool { return !n.isRegular() && n.size <= blockSize-inodeSize }

// planData gives blocks to what is not inline: directories first, so that
// metadata is together, then files in the order of their inodes.
func (w *erofsWriter) planData() {
	for _, regular := range []bool{false, true} {
		for _, p := range w.order {
			if n := p.n; n.isRegular() == regular && !n.inline() && n.size > 0 {
				n.block = uint32(w.block)
				w.block += blocks(n.size)
				if regular {
					w.data += n.size
				}
			}
		}
	}
}

// dirSize returns the sorted names of a directory with "." and "..", and the
// bytes that its records take.
func dirSize(n *node) (int64, []string) {
	names := make([]string, 0, len(n.children)+2)
	names = append(names, ".", "..")
	for name := range n.children {
		names = append(names, name)
	}
	slices.Sort(names)
	var size, used int64
	for _, name := range names {
		need := int64(direntSize + len(name))
		if used+need > blockSize {
			size, used = size+blockSize, 0
		}
		used += need
	}
	return size + used, names
}

// dirBlocks encodes a directory: in each block first the records, then their
// names. All blocks but the last are padded.
func (w *erofsWriter) dirBlocks(n, parent *node) []byte {
	var out []byte
	for names := n.sorted; len(names) > 0; {
		count, used := 0, 0
		for count < len(names) && used+direntSize+len(names[count]) <= blockSize {
			used += direntSize + len(names[count])
			count++
		}
		var strs []byte
		for _, name := range names[:count] {
			child := n.children[name].n
			switch name {
			case ".":
				child = n
			case "..":
				child = parent
			}
			out = binary.LittleEndian.AppendUint64(out, child.nid)
			out = binary.LittleEndian.AppendUint16(out, uint16(direntSize*count+len(strs)))
			out = append(out, fileType(child), 0)
			strs = append(strs, name...)
		}
		out = append(out, strs...)
		if names = names[count:]; len(names) > 0 {
			out = append(out, make([]byte, blockSize-used)...)
		}
	}
	return out
}

func fileType(n *node) uint8 {
	switch {
	case n.isDir():
		return 2
	case n.isSymlink():
		return 7
	}
	return 1
}

func (w *erofsWriter) writeSuper(out *os.File) error {
	b := make([]byte, blockSize-superOffset)
	le := binary.LittleEndian
	le.PutUint32(b[0:], superMagic)
	le.PutUint32(b[8:], compatChecksum)
	b[12] = blockBits
	le.PutUint16(b[14:], firstNid)
	le.PutUint64(b[16:], uint64(len(w.order)))
	le.PutUint32(b[36:], uint32(w.block))
	le.PutUint32(b[40:], metaBlock)
	copy(b[48:64], "caisson-image-v1") // UUID: fixed, the digest is the identity
	le.PutUint32(b[4:], ^crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	_, err := out.WriteAt(b, superOffset)
	return err
}

func (w *erofsWriter) writeInodes(out *os.File) error {
	bw := bufio.NewWriterSize(&offsetWriter{out, metaBlock * blockSize}, 256<<10)
	pos := int64(0)
	pad := func(to int64) {
		for ; pos < to; pos += min(to-pos, int64(len(zeros))) {
			bw.Write(zeros[:min(to-pos, int64(len(zeros)))]) // bufio keeps the error for Flush
		}
	}
	for _, p := range w.order {
		pad(int64(p.n.nid) * slotSize)
		bw.Write(inode(p))
		pos += inodeSize
		if p.n.inline() {
			content := []byte(p.n.target)
			if p.n.isDir() {
				content = w.dirBlocks(p.n, p.parent)
			}
			bw.Write(content)
			pos += int64(len(content))
		}
	}
	return bw.Flush()
}

// inode encodes the extended form.
func inode(p planned) []byte {
	n, b, le := p.n, make([]byte, inodeSize), binary.LittleEndian
	layout := uint16(layoutPlain)
	if n.inline() {
		layout = layoutInline
	}
	le.PutUint16(b[0:], layout<<1|extended)
	le.PutUint16(b[4:], n.mode)
	le.PutUint64(b[8:], uint64(n.size))
	le.PutUint32(b[16:], n.block)
	le.PutUint32(b[20:], p.ino)
	le.PutUint32(b[24:], n.uid)
	le.PutUint32(b[28:], n.gid)
	le.PutUint64(b[32:], uint64(n.mtime))
	le.PutUint32(b[40:], n.nsec)
	le.PutUint32(b[44:], n.nlink)
	return b
}

// writeDirs writes what is too large to be inline and is no file.
func (w *erofsWriter) writeDirs(out *os.File) error {
	for _, p := range w.order {
		if p.n.isRegular() || p.n.inline() {
			continue
		}
		content := []byte(p.n.target)
		if p.n.isDir() {
			content = w.dirBlocks(p.n, p.parent)
		}
		if _, err := out.WriteAt(content, int64(p.n.block)*blockSize); err != nil {
			return err
		}
	}
	return nil
}

func (w *erofsWriter) writeData(out *os.File) error {
	buf := make([]byte, 1<<20)
	var done int64
	for _, p := range w.order {
		n := p.n
		if !n.isRegular() {
			continue
		}
		for off := int64(0); off < n.size; {
			chunk := buf[:min(int64(len(buf)), n.size-off)]
			if got, err := w.spool.ReadAt(chunk, n.off+off); err != nil && !(err == io.EOF && got == len(chunk)) {
				return fmt.Errorf("cannot read spool: %w", err)
			}
			if err := writeSparse(out, chunk, int64(n.block)*blockSize+off); err != nil {
				return err
			}
			off += int64(len(chunk))
			done += int64(len(chunk))
			w.progress(done, w.data)
		}
	}
	return nil
}

type offsetWriter struct {
	w   io.WriterAt
	off int64
}

func (o *offsetWriter) Write(p []byte) (int, error) {
	n, err := o.w.WriteAt(p, o.off)
	o.off += int64(n)
	return n, err
}

// checkSuper tells an image of ours from a file that was cut, overwritten or
// never one. It costs one read; a full check is the digest.
func checkSuper(f *os.File, size int64) error {
	var b [blockSize - superOffset]byte
	if _, err := f.ReadAt(b[:], superOffset); err != nil {
		return fmt.Errorf("cannot read superblock: %w", err)
	}
	le := binary.LittleEndian
	sum := le.Uint32(b[4:])
	clear(b[4:8])
	st, err := f.Stat()
	switch {
	case err != nil:
		return fmt.Errorf("cannot stat image: %w", err)
	case st.Size() != size:
		return fmt.Errorf("file has %d bytes, not %d", st.Size(), size)
	case le.Uint32(b[0:]) != superMagic || sum != ^crc32.Checksum(b[:], crc32.MakeTable(crc32.Castagnoli)):
		return fmt.Errorf("superblock is damaged")
	case !bytes.Equal(b[80:84], []byte{0, 0, 0, 0}):
		return fmt.Errorf("superblock wants unknown features")
	case int64(le.Uint32(b[36:]))*blockSize != size:
		return fmt.Errorf("superblock is of an image of another size")
	}
	return nil
}
