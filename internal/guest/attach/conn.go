package attach

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Conn carries messages between parent and child, one per packet, sometimes
// with a descriptor.
type Conn struct {
	f *os.File
}

// NewPair returns the parent's end and the file for the child's.
func NewPair() (*Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot make a socket pair: %w", err)
	}
	return &Conn{os.NewFile(uintptr(fds[0]), "attach-parent")}, os.NewFile(uintptr(fds[1]), "attach-child"), nil
}

// OpenConn takes over descriptor fd, in the child.
func OpenConn(fd uintptr) (*Conn, error) {
	if err := unix.SetNonblock(int(fd), true); err != nil {
		return nil, fmt.Errorf("cannot use descriptor %d: %w", fd, err)
	}
	return &Conn{os.NewFile(fd, "attach")}, nil
}

// Send writes one message, with file attached when it is not nil.
func (c *Conn) Send(m Message, file *os.File) error {
	var rights []byte
	if file != nil {
		rights = unix.UnixRights(int(file.Fd()))
	}
	return c.do((syscall.RawConn).Write, func(fd int) error {
		return unix.Sendmsg(fd, m.Encode(), rights, nil, unix.MSG_NOSIGNAL)
	})
}

// Receive reads one message and the descriptor that came with it, if any.
// EOF is an error: the other side is gone.
func (c *Conn) Receive() (Message, *os.File, error) {
	b := make([]byte, Size+1) // one more, so that a longer packet is seen
	oob := make([]byte, unix.CmsgSpace(4))
	var n, oobn int
	err := c.do((syscall.RawConn).Read, func(fd int) (err error) {
		n, oobn, _, _, err = unix.Recvmsg(fd, b, oob, unix.MSG_CMSG_CLOEXEC)
		return err
	})
	if err != nil {
		return Message{}, nil, fmt.Errorf("cannot receive: %w", err)
	}
	if n == 0 {
		return Message{}, nil, fmt.Errorf("cannot receive: %w", os.ErrClosed)
	}
	file, err := receivedFile(oob[:oobn])
	if err != nil {
		return Message{}, nil, err
	}
	m, err := Decode(b[:n])
	if err != nil && file != nil {
		file.Close()
		file = nil
	}
	return m, file, err
}

func receivedFile(oob []byte) (*os.File, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(msgs) != 1 {
		return nil, fmt.Errorf("cannot receive: bad control message")
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != 1 {
		return nil, fmt.Errorf("cannot receive: bad descriptor message")
	}
	return os.NewFile(uintptr(fds[0]), "received"), nil
}

// do waits in the runtime's poller until op does not answer EAGAIN.
func (c *Conn) do(wait func(syscall.RawConn, func(uintptr) bool) error, op func(fd int) error) error {
	raw, err := c.f.SyscallConn()
	if err != nil {
		return err
	}
	var opErr error
	err = wait(raw, func(fd uintptr) bool {
		for {
			opErr = op(int(fd))
			if opErr != unix.EINTR {
				return opErr != unix.EAGAIN
			}
		}
	})
	if err != nil {
		return err
	}
	return opErr
}

// Close ends the conversation; the other side sees EOF.
func (c *Conn) Close() error { return c.f.Close() }
