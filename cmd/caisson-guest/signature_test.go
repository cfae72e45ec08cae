package main

import (
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
)

const vectorToken = "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0"

// The vector is from E2B's own clients.
func TestSignatureVector(t *testing.T) {
	const want = "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E"
	if got := signature("hello.txt", "read", "user", vectorToken, ""); got != want {
		t.Errorf("signature = %q, want %q", got, want)
	}
}

func TestCheckSignature(t *testing.T) {
	now := time.Unix(1000, 0)
	sign := func(path, op, user, exp string) string { return signature(path, op, user, vectorToken, exp) }
	for _, c := range []struct {
		name, method string
		query        url.Values
		want         string
	}{
		{"read", "GET", url.Values{"path": {"a"}, "signature": {sign("a", "read", "", "")}}, ""},
		{"write", "POST", url.Values{"path": {"a"}, "username": {"u"}, "signature": {sign("a", "write", "u", "")}}, ""},
		{"no path", "GET", url.Values{"signature": {sign("", "read", "", "")}}, ""},
		{"not yet expired", "GET", url.Values{"signature": {sign("", "read", "", "1001")}, "signature_expiration": {"1001"}}, ""},
		{"expired", "GET", url.Values{"signature": {sign("", "read", "", "1000")}, "signature_expiration": {"1000"}}, "expired"},
		{"expiration changed", "GET", url.Values{"signature": {sign("", "read", "", "1000")}, "signature_expiration": {"9999"}}, "invalid"},
		{"expiration removed", "GET", url.Values{"signature": {sign("", "read", "", "1000")}}, "invalid"},
		{"expiration is no number", "GET", url.Values{"signature": {sign("", "read", "", "x")}, "signature_expiration": {"x"}}, "invalid"},
		{"read used to write", "POST", url.Values{"path": {"a"}, "signature": {sign("a", "read", "", "")}}, "invalid"},
		{"another user", "GET", url.Values{"path": {"a"}, "username": {"root"}, "signature": {sign("a", "read", "", "")}}, "invalid"},
		{"another path", "GET", url.Values{"path": {"b"}, "signature": {sign("a", "read", "", "")}}, "invalid"},
		{"missing", "GET", url.Values{"path": {"a"}}, "missing"},
		{"empty", "GET", url.Values{"signature": {""}}, "missing"},
	} {
		r := httptest.NewRequest(c.method, "/files?"+c.query.Encode(), nil)
		err := checkSignature(r, vectorToken, now)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

func FuzzCheckSignature(f *testing.F) {
	f.Add("path=a&signature=v1_x&signature_expiration=1")
	f.Add("%zz")
	f.Fuzz(func(t *testing.T, query string) {
		r := httptest.NewRequest("GET", "/files", nil)
		r.URL.RawQuery = query
		if checkSignature(r, vectorToken, time.Unix(0, 0)) == nil {
			t.Errorf("query %q is accepted", query)
		}
	})
}
