package sandbox

import (
	"context"
	"path/filepath"
	"time"

	"caisson.dev/caisson/api"
	"caisson.dev/caisson/internal/export"
	"caisson.dev/caisson/internal/guest/attach"
)

// collectTimeout bounds the copying of all artifacts of a run, and stopTimeout
// the wait for everything inside to be dead before it.
const (
	collectTimeout = 60 * time.Second
	stopTimeout    = 5 * time.Second
)

// collect copies the artifacts out, one after the other, through the one
// writer (I6). All of them together stay below the limit. Whatever the program
// left running is killed first: it could use the processor past its limits,
// and change files under the copy. A sandbox that ends, a second Ctrl-C or the
// time limit end the copying.
func (r *run) collect(ctx context.Context, gone <-chan struct{}) {
	c := collector{run: r, ctx: ctx, gone: gone, timeout: time.After(collectTimeout)}
	if r.interrupted {
		c.ctx = context.Background() // that one asked the program to end
	}
	failed := c.stop()
	left := r.req.Limits.Artifacts
	for i, a := range r.req.Artifacts {
		res := api.ArtifactResult{Path: a.Path, Dest: a.Dest, Error: failed}
		if failed == "" {
			res, failed = c.one(i, a, left)
		}
		left -= res.Bytes
		r.files = append(r.files, res)
	}
}

// collector is the state of the copying.
type collector struct {
	run     *run
	ctx     context.Context
	gone    <-chan struct{}
	timeout <-chan time.Time
}

// wait handles messages until done says so. It returns why it was cut short.
func (c *collector) wait(done func(attach.Message) bool, written <-chan export.Result) (w export.Result, cut string) {
	messages := c.run.session.Messages()
	for {
		select {
		case m, ok := <-messages:
			if !ok {
				return w, "the process that copies ended"
			}
			if done(m) {
				return w, ""
			}
		case w = <-written:
			return w, ""
		case <-c.gone:
			return w, "the sandbox ended meanwhile"
		case <-c.ctx.Done():
			return w, "interrupted"
		case <-c.timeout:
			return w, "copying took longer than " + collectTimeout.String()
		}
	}
}

// stop kills what the program left running.
func (c *collector) stop() (failed string) {
	if err := c.run.session.Send(attach.Message{Kind: attach.Stop}); err != nil {
		return err.Error()
	}
	overall := c.timeout
	c.timeout = time.After(stopTimeout)
	defer func() { c.timeout = overall }()
	var says string
	_, cut := c.wait(func(m attach.Message) bool {
		says = m.Text
		return m.Kind == attach.Stopped
	}, nil)
	if cut != "" {
		return "what the program left running could not be stopped: " + cut
	}
	return says
}

// one copies artifact i. A failure that ends all copying comes back in failed.
func (c *collector) one(i int, a api.Artifact, left int64) (res api.ArtifactResult, failed string) {
	res = api.ArtifactResult{Path: a.Path, Dest: a.Dest}
	r := c.run
	if err := r.session.Send(attach.Message{Kind: attach.Artifact, A: int64(i)}); err != nil {
		res.Error = err.Error()
		return res, res.Error
	}
	done := make(chan export.Result, 1)
	go func() {
		done <- export.Write(r.cfg.Destinations[i], filepath.Base(a.Dest), r.session.Artifacts(), left)
	}()
	var guestSays string
	w, cut := c.wait(func(m attach.Message) bool {
		if m.Kind == attach.ArtifactEnd && m.A == int64(i) {
			guestSays = m.Text
		}
		return false
	}, done)
	if cut != "" {
		r.session.Artifacts().Close() // ends the writer, which removes what is half there
		w = <-done
		res.Error = cut
		return res, cut
	}
	if guestSays == "" && w.Err != nil {
		guestSays = c.guestReason(i)
	}
	return artifactResult(res, w, guestSays), ""
}

// guestReason is what the child says about a broken artifact, if it does so
// soon: the writer sees the end of the stream before that message comes.
func (c *collector) guestReason(i int) (says string) {
	overall := c.timeout
	c.timeout = time.After(200 * time.Millisecond)
	defer func() { c.timeout = overall }()
	c.wait(func(m attach.Message) bool {
		if m.Kind == attach.ArtifactEnd && m.A == int64(i) {
			says = m.Text
			return true
		}
		return false
	}, nil)
	return says
}

func artifactResult(res api.ArtifactResult, w export.Result, guestSays string) api.ArtifactResult {
	res.Bytes, res.Files, res.Skipped, res.SHA256 = w.Bytes, w.Files, w.Skipped, w.SHA256
	if w.Err != nil {
		res.Error = w.Err.Error()
	}
	if guestSays != "" {
		res.Error = guestSays
	}
	return res
}
