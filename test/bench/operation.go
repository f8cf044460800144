package main

import (
	"net/http"
	"slices"
	"strings"

	"github.com/csi-sidecars/external-provisioner/test/cluster"
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

// operationOf says what a request does to what.
func operationOf(r *http.Request) operation {
	_, parts := cluster.SplitPath(r.URL.Path)
	if len(parts) == 0 {
		return operation{Verb: "get", Resource: r.URL.Path}
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
