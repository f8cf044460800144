package chaos

import (
	"net/http"
	"strings"

	"github.com/csi-sidecars/external-provisioner/test/cluster"
)

// isWrite says whether the request changes an object that volumes depend on. Events and reviews of rights do not count, and of Leases those of
// operations do, each of which is created once and updated after that.
func isWrite(r *http.Request) bool {
	switch r.Method {
	case http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
		switch resourceOf(r) {
		case "events", "selfsubjectaccessreviews":
			return false
		case "leases":
			return strings.Contains(r.URL.Path, "-op-")
		}
		return true
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
