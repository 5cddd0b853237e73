package punctual

import (
	"context"
	"errors"
	"net/http"
)

// TouchRule is a stored rule for touches: a touch of a key that begins with the prefix and has no
// task creates the watch.
type TouchRule struct {
	// Prefix is how the keys begin. The rule with the longest prefix decides.
	Prefix string `json:"prefix"`
	// Create is the watch, as it was sent.
	Create TaskFields `json:"create"`
}

// ruleList is the answer of a call.
type ruleList struct {
	Rules []TouchRule `json:"rules"`
}

// Rules lists the touch rules of the namespace by prefix.
func (c *Client) Rules(ctx context.Context) ([]TouchRule, error) {
	got, err := decode[ruleList](ctx, c, get(c.path("rules"), nil))
	if err != nil {
		return nil, err
	}
	return got.Rules, nil
}

// PutRule creates or replaces the touch rule of a prefix. The options describe the watch: they have
// [Within] and a target, and no [Key]. Watches that exist stay as they are.
func (c *Client) PutRule(ctx context.Context, prefix string, options ...TaskOption) (*TouchRule, error) {
	path, err := c.rulePath(prefix)
	if err != nil {
		return nil, err
	}
	watch := NewTask("", options...)
	body, err := watch.encode()
	if err != nil {
		return nil, err
	}
	return decode[TouchRule](ctx, c, call{method: http.MethodPut, path: path, body: body, repeatable: true})
}

// DeleteRule deletes the touch rule of a prefix. The watches that it has created stay. A prefix
// without a rule fails the call with [ErrRuleNotFound].
func (c *Client) DeleteRule(ctx context.Context, prefix string) error {
	path, err := c.rulePath(prefix)
	if err != nil {
		return err
	}
	_, err = decode[deleted](ctx, c, call{method: http.MethodDelete, path: path})
	return err
}

// rulePath is the path of a rule. An empty prefix would name the list of all rules, so it is refused.
func (c *Client) rulePath(prefix string) (string, error) {
	if prefix == "" {
		return "", errors.New("punctual: the prefix of the rule is empty")
	}
	return c.path("rules", prefix), nil
}
