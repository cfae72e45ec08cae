package image

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// What a child tells the parent: fixed headers, and behind two kinds of them a
// bounded payload. The parent parses nothing else that a child says.
type message struct {
	Kind  uint8
	Code  failure // of a failed message
	Stage Stage   // of a progress message
	_     uint8
	Len   uint32 // bytes of payload behind the header
	Done  int64
	Total int64 // 0 when unknown
}

const (
	msgProgress uint8 = iota + 1 // Done of Total in Stage
	msgConfig                    // payload: childConfig as JSON
	msgDone                      // Done: size of the image; Total: entries left out
	msgFailed                    // payload: text
)

const (
	maxConfigMsg = 64 << 10
	maxErrorMsg  = 1 << 10
)

// Stage is what is being done to an image.
type Stage uint8

const (
	StageNone   Stage = iota
	StageWait         // for another process that makes the same image
	StageBuild        // packages are being installed
	StageUnpack       // layers are being read
	StageWrite        // the image file is being written
	StageVerify       // its digest is being computed
	StageStart        // the source is being opened or asked
	stageEnd
)

func (s Stage) String() string {
	if s >= stageEnd {
		s = StageNone
	}
	return [...]string{"", "wait", "build", "unpack", "write", "verify", "start"}[s]
}

// Config is what an image says about how to run it.
type Config struct {
	Env        []string `json:"env,omitempty"`
	User       string   `json:"user,omitempty"`
	WorkDir    string   `json:"workdir,omitempty"`
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
}

// childConfig is the one structured message of the unpack child.
type childConfig struct {
	Config Config `json:"config"`
	Source string `json:"source"` // digest of the image manifest
}

// validate bounds what goes into every sandbox that uses the image.
func (c childConfig) validate() error {
	if c.Source != "" && !reDigest.MatchString(c.Source) {
		return errors.New("malformed source digest")
	}
	all := [][]string{c.Config.Env, c.Config.Entrypoint, c.Config.Cmd, {c.Config.User, c.Config.WorkDir}}
	for _, list := range all {
		if len(list) > 1000 {
			return errors.New("more than 1000 values in one list of the image configuration")
		}
		for _, s := range list {
			if strings.IndexByte(s, 0) >= 0 {
				return errors.New("a NUL in the image configuration")
			}
		}
	}
	for _, e := range c.Config.Env {
		if i := strings.IndexByte(e, '='); i <= 0 {
			return fmt.Errorf("environment entry %.40q of the image has no name", e)
		}
	}
	if w := c.Config.WorkDir; w != "" && w[0] != '/' {
		return fmt.Errorf("working directory %.40q of the image is not absolute", w)
	}
	if len(c.Config.User) > 256 || strings.ContainsFunc(c.Config.User, isControl) {
		return errors.New("malformed user in the image configuration")
	}
	return nil
}

// reporter is the child's side. It is safe for use by several goroutines.
type reporter struct {
	mu   sync.Mutex
	w    io.Writer
	last time.Time
}

func (r *reporter) send(m message, payload []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	m.Len = uint32(len(payload))
	var buf bytes.Buffer
	binary.Write(&buf, binary.LittleEndian, m)
	buf.Write(payload)
	_, err := r.w.Write(buf.Bytes())
	return err
}

// progress sends at most 20 messages a second, and always the last of a stage.
func (r *reporter) progress(s Stage, done, total int64) {
	r.mu.Lock()
	now := time.Now()
	skip := now.Sub(r.last) < 50*time.Millisecond && done != total
	if !skip {
		r.last = now
	}
	r.mu.Unlock()
	if !skip {
		r.send(message{Kind: msgProgress, Stage: s, Done: done, Total: total}, nil)
	}
}

func (r *reporter) config(c childConfig) error {
	if err := c.validate(); err != nil {
		return failf(failFormat, "%w", err)
	}
	b, err := json.Marshal(c)
	if err != nil || len(b) > maxConfigMsg {
		return failf(failFormat, "image configuration of %d bytes is over %d", len(b), maxConfigMsg)
	}
	return r.send(message{Kind: msgConfig}, b)
}

func (r *reporter) fail(err error) error {
	text := err.Error()
	return r.send(message{Kind: msgFailed, Code: failureOf(err)}, []byte(text[:min(len(text), maxErrorMsg)]))
}

// outcome is what a child said before it ended.
type outcome struct {
	config  childConfig
	size    int64 // of the image; 0 when there is none
	dropped int64
	err     error // a codedError, from msgFailed
	ended   bool  // done or failed was said
}

// readOutcome is the parent's side. It returns at the child's last word, at
// the end of the stream, or at the first thing that is not allowed there.
func readOutcome(r io.Reader, progress func(Stage, int64, int64)) (o outcome, err error) {
	for !o.ended {
		var m message
		if err := binary.Read(r, binary.LittleEndian, &m); err == io.EOF {
			return o, nil
		} else if err != nil {
			return outcome{}, fmt.Errorf("cannot read child: %w", err)
		}
		payload, err := m.readPayload(r)
		if err != nil {
			return outcome{}, err
		}
		switch m.Kind {
		case msgProgress:
			if m.Stage >= stageEnd || m.Done < 0 || m.Total < 0 {
				return outcome{}, errors.New("cannot read child: malformed progress")
			}
			progress(m.Stage, m.Done, m.Total)
		case msgConfig:
			d := json.NewDecoder(bytes.NewReader(payload))
			d.DisallowUnknownFields()
			o.config = childConfig{}
			if err := d.Decode(&o.config); err != nil {
				return outcome{}, fmt.Errorf("cannot read image configuration: %w", err)
			}
			if err := o.config.validate(); err != nil {
				return outcome{}, fmt.Errorf("cannot read image configuration: %w", err)
			}
		case msgDone:
			o.size, o.dropped, o.ended = m.Done, m.Total, true
		case msgFailed:
			if m.Code >= failEnd {
				m.Code = failInternal
			}
			o.err, o.ended = failf(m.Code, "%s", printable(payload)), true
		}
	}
	return o, nil
}

// readPayload bounds a payload before it is read.
func (m message) readPayload(r io.Reader) ([]byte, error) {
	most := map[uint8]uint32{msgProgress: 0, msgConfig: maxConfigMsg, msgDone: 0, msgFailed: maxErrorMsg}
	limit, ok := most[m.Kind]
	if !ok || m.Len > limit {
		return nil, fmt.Errorf("cannot read child: message %d with %d bytes", m.Kind, m.Len)
	}
	payload := make([]byte, m.Len)
	if _, err := io.ReadFull(r, payload); err != nil {
		return nil, fmt.Errorf("cannot read child: %w", err)
	}
	return payload, nil
}

// printable makes text from a child safe for a terminal and one line long.
func printable(b []byte) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c >= 0x7f && c < 0xa0 || c == 0xfffd || c >= 0x2028 && c <= 0x202e || c >= 0x2066 && c <= 0x2069 {
			return '?'
		}
		return c
	}, string(b))
}
