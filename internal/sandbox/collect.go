package sandbox

import (
	"time"

	"caisson.dev/caisson/api"
	"caisson.dev/caisson/internal/export"
	"caisson.dev/caisson/internal/guest/attach"
)

// collectTimeout bounds the copying of one artifact.
const collectTimeout = 60 * time.Second

// collect copies the artifacts out, one after the other, through the one
// writer (I6). All of them together stay below the limit.
func (r *run) collect() {
	left := r.req.Limits.Artifacts
	for i, a := range r.req.Artifacts {
		res := r.collectOne(int64(i), a, left)
		left -= res.Bytes
		r.files = append(r.files, res)
		if res.Error != "" && left <= 0 {
			return
		}
	}
}

func (r *run) collectOne(i int64, a api.Artifact, left int64) api.ArtifactResult {
	res := api.ArtifactResult{Path: a.Path, Dest: a.Dest}
	if err := r.session.Send(attach.Message{Kind: attach.Artifact, A: i}); err != nil {
		res.Error = err.Error()
		return res
	}
	done := make(chan export.Result, 1)
	go func() { done <- export.Write(a.Dest, r.session.Artifacts(), left) }()
	timeout := time.NewTimer(collectTimeout)
	defer timeout.Stop()
	var guestSays string
	for messages := r.session.Messages(); ; {
		select {
		case m, ok := <-messages:
			if !ok {
				messages = nil
			} else if m.Kind == attach.ArtifactEnd && m.A == i {
				guestSays = m.Text
			}
		case w := <-done:
			return artifactResult(res, w, guestSays)
		case <-timeout.C:
			r.session.Artifacts().Close() // unblocks the writer
			res.Error = "copying took longer than " + collectTimeout.String()
			return res
		}
	}
}

func artifactResult(res api.ArtifactResult, w export.Result, guestSays string) api.ArtifactResult {
	res.Bytes, res.Files, res.SHA256 = w.Bytes, w.Files, w.SHA256
	if w.Err != nil {
		res.Error = w.Err.Error()
	}
	if guestSays != "" {
		res.Error = guestSays
	}
	return res
}
