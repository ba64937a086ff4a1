// Package image keeps container images: it pulls them from registries, imports
// them from archives, unpacks their layers for overlayfs and removes what nobody
// holds.
//
// On disk, below the folder that Open is given:
//
//	lock                  held by the process that has the store open
//	refs.json             record: every tag and digest reference → image ID
//	images/<hex>.json     record: one image (its layers by chain ID, its config)
//	layers/<id>/fs        one unpacked layer, a lowerdir of overlayfs
//	layers/<id>/meta.json record: chain ID, diff ID, size
//	ingest/               downloads and half-unpacked layers; emptied by Open
//
// A layer is unpacked below ingest and renamed into place when it is whole; an
// image record is written when all its layers are there; a reference comes last.
// So a crash at any moment leaves only what Open sweeps away.
//
// The CRI server is the store's only caller inside a node; `wherry image` opens
// the store itself when no node has it open.
package image
