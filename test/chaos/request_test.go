package chaos

import (
	"net/http"

	"github.com/csi-sidecars/external-provisioner/test/cluster"
)

// isWrite says whether the request changes an object that volumes depend on. Events and leases do not count.
func isWrite(r *http.Request) bool {
	switch r.Method {
	case http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
		return resourceOf(r) != "events" && resourceOf(r) != "leases"
	}
	return false
}

func isWatch(r *http.Request) bool { return r.URL.Query().Get("watch") != "" }

// resourceOf returns the plural name of what the request is about, as "persistentvolumes"; "" for other paths.
func resourceOf(r *http.Request) string {
	_, words := cluster.SplitPath(r.URL.Path)
	if len(words) == 0 {
		return ""
	}
	return words[0]
}

func describe(r *http.Request) string { return r.Method + " " + resourceOf(r) }
