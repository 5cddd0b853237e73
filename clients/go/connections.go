package punctual

import (
	"context"
	"net/http"
	"time"
)

// Connections has the connections of a broker by name, and its sources.
type Connections struct {
	Connections []Connection `json:"connections"`
	Sources     []Source     `json:"sources"`
}

// Connection is a database of the broker's configuration that tasks can name.
type Connection struct {
	Name string `json:"name"`
	// Kind is postgres or mysql.
	Kind    string `json:"kind"`
	Address string `json:"address"`
	// State is ready or away.
	State string    `json:"state"`
	Since time.Time `json:"since"`
	// Problem says why it is away.
	Problem  string `json:"problem,omitempty"`
	Sessions int64  `json:"sessions"`
	// Waiting counts the deliveries that wait for a session.
	Waiting  int64 `json:"waiting"`
	InFlight int64 `json:"in_flight"`
	// Confirmed and Failed count deliveries since the broker started.
	Confirmed int64 `json:"confirmed"`
	Failed    int64 `json:"failed"`
	// Namespaces are those whose tasks may name it, and Allow which statements they may name.
	Namespaces []string `json:"namespaces"`
	Allow      []string `json:"allow"`
	Statements []string `json:"statements"`
}

// Source is a table of a connection whose rows become tasks. ReadAt is nil if the broker that
// answers has not read it.
type Source struct {
	Name      string     `json:"name"`
	Namespace string     `json:"namespace"`
	ReadAt    *time.Time `json:"read_at,omitempty"`
	Applied   int64      `json:"applied"`
	Rejected  int64      `json:"rejected"`
	// LagMS is how long the oldest row of the last read had waited.
	LagMS int64 `json:"lag_ms"`
	// Problem says why it cannot be read at present.
	Problem string `json:"problem,omitempty"`
}

// ConnectionTest says whether a connection works, and why not.
type ConnectionTest struct {
	Name    string `json:"name"`
	Works   bool   `json:"works"`
	Problem string `json:"problem,omitempty"`
}

// Connections lists the connections and sources of the broker that answers. It needs an admin token.
func (c *Client) Connections(ctx context.Context) (*Connections, error) {
	return decode[Connections](ctx, c, get("/v1/connections", nil))
}

// TestConnection opens a session of a connection and closes it. A connection that does not work is
// no error of the call; a name that is not in the configuration fails it with
// [ErrConnectionNotFound]. It needs an admin token.
func (c *Client) TestConnection(ctx context.Context, name string) (*ConnectionTest, error) {
	test := call{method: http.MethodPost, path: "/v1/connections/" + escapeSegment(name) + "/test", repeatable: true}
	return decode[ConnectionTest](ctx, c, test)
}
