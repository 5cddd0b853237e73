// Package webhook verifies the webhooks of Punctual, which are signed as Standard Webhooks
// describes, and gives them to a handler.
package webhook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	punctual "punctual.dev/go"
)

// ErrInvalid is the error of a webhook that is not signed with one of the secrets, or is too old.
var ErrInvalid = errors.New("webhook: invalid signature")

const (
	// toleranceDefault is how far the timestamp may be from now, as Standard Webhooks suggests.
	toleranceDefault = 5 * time.Minute
	// bodyBytesMax is above the largest payload of a task (256 KiB) and of a callback.
	bodyBytesMax = 1 << 20
)

// Verifier checks signatures.
type Verifier struct {
	secrets   [][]byte
	tolerance time.Duration
	now       func() time.Time
}

// An Option configures a [Verifier].
type Option func(*Verifier)

// Tolerance is how far the timestamp of a webhook may be from now; the default is 5 minutes.
func Tolerance(most time.Duration) Option { return func(v *Verifier) { v.tolerance = most } }

// Now replaces the clock, for tests.
func Now(now func() time.Time) Option { return func(v *Verifier) { v.now = now } }

// NewVerifier makes a verifier from secrets like whsec_…; during a rotation give both of them,
// separated by a space.
func NewVerifier(secrets string, options ...Option) (*Verifier, error) {
	v := &Verifier{tolerance: toleranceDefault, now: time.Now}
	for _, text := range strings.Fields(secrets) {
		secret, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(text, "whsec_"))
		if err != nil || len(secret) == 0 {
			return nil, errors.New("webhook: a secret must be whsec_ and base64")
		}
		v.secrets = append(v.secrets, secret)
	}
	if len(v.secrets) == 0 {
		return nil, errors.New("webhook: there is no secret")
	}
	for _, option := range options {
		option(v)
	}
	return v, nil
}

// Verify checks the signature of a body as it was received, byte by byte. The error is
// [ErrInvalid].
func Verify(secrets string, header http.Header, body []byte) error {
	v, err := NewVerifier(secrets)
	if err != nil {
		return err
	}
	return v.Verify(header, body)
}

// Verify checks the signature of a body as it was received, byte by byte. The error is
// [ErrInvalid].
func (v *Verifier) Verify(header http.Header, body []byte) error {
	id, timestamp := header.Get("webhook-id"), header.Get("webhook-timestamp")
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if id == "" || err != nil {
		return fmt.Errorf("%w: webhook-id or webhook-timestamp is missing", ErrInvalid)
	}
	if math.Abs(float64(v.now().Unix()-seconds)) > v.tolerance.Seconds() {
		return fmt.Errorf("%w: webhook-timestamp is more than %s from now", ErrInvalid, v.tolerance)
	}
	for _, text := range strings.Fields(strings.Join(header.Values("webhook-signature"), " ")) {
		encoded, ok := strings.CutPrefix(text, "v1,")
		signature, err := base64.StdEncoding.DecodeString(encoded)
		if !ok || err != nil {
			continue
		}
		for _, secret := range v.secrets {
			if hmac.Equal(signature, sign(secret, id, timestamp, body)) {
				return nil
			}
		}
	}
	return fmt.Errorf("%w: no signature matches", ErrInvalid)
}

func sign(secret []byte, id, timestamp string, body []byte) []byte {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(id + "." + timestamp + "."))
	mac.Write(body)
	return mac.Sum(nil)
}

// Wrap lets only signed webhooks pass to the next handler, which can read the raw body again.
// Others get 401.
func (v *Verifier) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, bodyBytesMax))
		if err != nil {
			http.Error(w, "the body cannot be read: "+err.Error(), http.StatusRequestEntityTooLarge)
			return
		}
		if err := v.Verify(r.Header, body); err != nil {
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r)
	})
}

// Handler handles signed webhooks like the handler of a worker: no error answers 204,
// [punctual.Refuse] answers 410, [punctual.Retry] answers 503 with the pause, any other error
// answers 500, which the broker repeats by the task's policy.
func Handler[T any](secrets string, handle func(context.Context, punctual.Fire[T]) error, options ...Option) (http.Handler, error) {
	verifier, err := NewVerifier(secrets, options...)
	if err != nil {
		return nil, err
	}
	return verifier.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		delivery, err := ReadDelivery(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		fire, err := punctual.NewFire[T](delivery)
		if err == nil {
			err = handle(r.Context(), fire)
		}
		answer(w, err)
	})), nil
}

// ReadDelivery reads a webhook as a delivery. It has no token, task and lease, which are those of
// queues.
func ReadDelivery(r *http.Request) (*punctual.Delivery, error) {
	body, err := io.ReadAll(io.LimitReader(r.Body, bodyBytesMax))
	if err != nil {
		return nil, err
	}
	header := r.Header
	delivery := &punctual.Delivery{
		FireID: header.Get("webhook-id"), Key: header.Get("punctual-key"),
		Occasion:   punctual.Occasion(header.Get("punctual-occasion")),
		CallbackOf: header.Get("punctual-callback-of"), ContentType: header.Get("content-type"),
		Payload: body,
	}
	delivery.Attempt, _ = strconv.Atoi(header.Get("punctual-attempt"))
	delivery.Version, _ = strconv.ParseInt(header.Get("punctual-version"), 10, 64)
	delivery.LagMS, _ = strconv.ParseInt(header.Get("punctual-lag-ms"), 10, 64)
	if at, err := time.Parse(time.RFC3339, header.Get("punctual-fire-at")); err == nil {
		delivery.FireAt = at
		delivery.FiredAt = at.Add(time.Duration(delivery.LagMS) * time.Millisecond)
	}
	return delivery, nil
}

func answer(w http.ResponseWriter, err error) {
	var refuse *punctual.RefuseError
	var retry *punctual.RetryError
	switch {
	case err == nil:
		w.WriteHeader(http.StatusNoContent)
	case errors.As(err, &refuse):
		http.Error(w, refuse.Reason, http.StatusGone)
	case errors.As(err, &retry):
		if retry.After >= 0 {
			seconds := int64(math.Ceil(retry.After.Seconds()))
			w.Header().Set("Retry-After", strconv.FormatInt(seconds, 10))
		}
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	default:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}
