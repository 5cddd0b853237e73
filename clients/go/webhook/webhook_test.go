package webhook

import (
	"context"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	punctual "punctual.dev/go"
)

const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// signed makes a request with a signature of the body, made now.
func signed(t *testing.T, body string) *http.Request {
	t.Helper()
	verifier, err := NewVerifier(secret)
	if err != nil {
		t.Fatal(err)
	}
	request := httptest.NewRequest(http.MethodPost, "/hook", strings.NewReader(body))
	timestamp := strconv.FormatInt(time.Now().Unix(), 10)
	signature := sign(verifier.secrets[0], "fire-1", timestamp, []byte(body))
	request.Header.Set("webhook-id", "fire-1")
	request.Header.Set("webhook-timestamp", timestamp)
	request.Header.Set("webhook-signature", "v1,"+base64.StdEncoding.EncodeToString(signature))
	request.Header.Set("punctual-key", "order-1")
	request.Header.Set("punctual-attempt", "2")
	return request
}

func TestTheErrorOfAHandlerDecidesTheAnswer(t *testing.T) {
	for _, test := range []struct {
		name       string
		err        error
		status     int
		retryAfter string
	}{
		{"no error", nil, http.StatusNoContent, ""},
		{"refuse", punctual.Refuse("no such order"), http.StatusGone, ""},
		{"retry", punctual.Retry(1500 * time.Millisecond), http.StatusServiceUnavailable, "2"},
		{"retry by the policy", punctual.Retry(punctual.OwnBackoff), http.StatusServiceUnavailable, ""},
		{"an error", errors.New("broken"), http.StatusInternalServerError, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got punctual.Fire[map[string]int]
			handler, err := Handler(secret, func(_ context.Context, fire punctual.Fire[map[string]int]) error {
				got = fire
				return test.err
			})
			if err != nil {
				t.Fatal(err)
			}
			answer := httptest.NewRecorder()
			handler.ServeHTTP(answer, signed(t, `{"order": 1}`))
			if answer.Code != test.status || answer.Header().Get("Retry-After") != test.retryAfter {
				t.Errorf("answered %d, Retry-After %q", answer.Code, answer.Header().Get("Retry-After"))
			}
			if got.ID != "fire-1" || got.Key != "order-1" || got.Attempt != 2 || got.Payload["order"] != 1 {
				t.Errorf("the handler got %+v", got)
			}
		})
	}
}

func TestOnlySignedRequestsPassWithTheirRawBody(t *testing.T) {
	verifier, err := NewVerifier(secret)
	if err != nil {
		t.Fatal(err)
	}
	var bodies []string
	handler := verifier.Wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		bodies = append(bodies, string(body))
	}))
	changed := signed(t, `{"order": 1}`)
	changed.Body = io.NopCloser(strings.NewReader(`{"order": 2}`))
	old := signed(t, `{"order": 1}`)
	old.Header.Set("webhook-timestamp", "1799056800")
	for _, request := range []*http.Request{changed, old, httptest.NewRequest(http.MethodPost, "/", strings.NewReader("{}"))} {
		answer := httptest.NewRecorder()
		if handler.ServeHTTP(answer, request); answer.Code != http.StatusUnauthorized {
			t.Errorf("answered %d", answer.Code)
		}
	}
	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, signed(t, `{"order": 1}`))
	if answer.Code != http.StatusOK || len(bodies) != 1 || bodies[0] != `{"order": 1}` {
		t.Errorf("answered %d, bodies %q", answer.Code, bodies)
	}
}
