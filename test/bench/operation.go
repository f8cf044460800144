package main

import (
	"net/http"
	"slices"
	"strings"
)

// operation is a kind of request in the words of an RBAC rule.
type operation struct {
	Verb     string `json:"verb"`
	Resource string `json:"resource"`
}

// amount is how much of it there was.
type amount struct {
	Requests int64 `json:"requests"`
	Sent     int64 `json:"sentBytes"`
	Received int64 `json:"receivedBytes"`
}

func (a amount) minus(b amount) amount {
	return amount{Requests: a.Requests - b.Requests, Sent: a.Sent - b.Sent, Received: a.Received - b.Received}
}

// since returns what was added between two snapshots, without what did not change.
func since(before, after map[operation]amount) map[operation]amount {
	added := map[operation]amount{}
	for op, a := range after {
		if d := a.minus(before[op]); d != (amount{}) {
			added[op] = d
		}
	}
	return added
}

// operationOf reads a request's path: /api/v1 or /apis/<group>/<version>, then perhaps namespaces/<name>, then the
// resource, its name and a subresource.
func operationOf(r *http.Request) operation {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case len(parts) > 2 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		parts = parts[3:]
	default:
		return operation{Verb: "get", Resource: r.URL.Path}
	}
	if len(parts) > 2 && parts[0] == "namespaces" {
		parts = parts[2:]
	}
	named := len(parts) > 1
	resource := parts[0]
	if len(parts) > 2 {
		resource = strings.Join(slices.Delete(slices.Clone(parts), 1, 2), "/")
	}
	return operation{Verb: verbOf(r, named), Resource: resource}
}

func verbOf(r *http.Request, named bool) string {
	switch r.Method {
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		return "delete"
	}
	watch := r.URL.Query().Get("watch")
	switch {
	case watch == "true" || watch == "1":
		return "watch"
	case named:
		return "get"
	}
	return "list"
}
