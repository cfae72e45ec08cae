package main

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// signature is what a URL to /files carries instead of the token. path and
// user stand exactly as in the query, absent ones as "".
func signature(path, operation, user, token, expiration string) string {
	text := path + ":" + operation + ":" + user + ":" + token
	if expiration != "" {
		text += ":" + expiration
	}
	sum := sha256.Sum256([]byte(text))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}

// checkSignature verifies a request to /files that came without the token.
func checkSignature(r *http.Request, token string, now time.Time) error {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return errors.New("invalid signature")
	}
	given := q.Get("signature")
	if given == "" {
		return errors.New("missing signature query parameter")
	}
	operation := "read"
	if r.Method == http.MethodPost {
		operation = "write"
	}
	expiration := q.Get("signature_expiration")
	if !sameSecret(given, signature(q.Get("path"), operation, q.Get("username"), token, expiration)) {
		return errors.New("invalid signature")
	}
	if expiration == "" {
		return nil
	}
	at, err := strconv.ParseInt(expiration, 10, 64)
	if err != nil {
		return errors.New("invalid signature")
	}
	if now.Unix() >= at {
		return errors.New("signature is already expired")
	}
	return nil
}
