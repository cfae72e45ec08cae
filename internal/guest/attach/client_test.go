package attach

import (
	"context"
	"net"
	"net/http"
	"sync"
	"testing"

	"caisson.dev/caisson/internal/guest"
)

// The upload of a script and the greeting start together: whichever came
// second found no connection to dial and failed, once in some hundred runs.
func TestRequestsThatComeBeforeTheConnectionShareIt(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(guest.TokenHeader) != "t" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	})}
	s.Protocols.SetUnencryptedHTTP2(true)
	go s.Serve(l)
	defer s.Close()
	for range 20 {
		control := make(chan net.Conn, 1)
		c := newClient(make(chan net.Conn), control, "t")
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if err := c.health(context.Background()); err != nil {
					t.Error(err)
				}
			})
		}
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		control <- conn
		close(control)
		wg.Wait()
		conn.Close()
	}
}
