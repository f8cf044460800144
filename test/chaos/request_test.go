package chaos

import (
	"net/http"
	"strings"
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
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case len(parts) > 2 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		parts = parts[3:]
	default:
		return ""
	}
	if len(parts) > 2 && parts[0] == "namespaces" {
		parts = parts[2:]
	}
	return parts[0]
}

// describe is the request as "PUT persistentvolumeclaims".
func describe(r *http.Request) string { return r.Method + " " + resourceOf(r) }
