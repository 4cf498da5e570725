# The images of this checkout, several at a time: `docker buildx bake predict segment`, or all of them.
# `make bake` adds what the file cannot know: versions, commit, base image. Without it the images have the tag `dev`.
variable "TORCH" { default = "cuda" } # or cpu, or cuda12

# JSON, the build arguments by stage, as `containers/images.py arguments` prints them.
variable "IMAGE_ARGUMENTS" { default = "{}" }

group "default" { targets = ["image"] }

target "image" {
  matrix     = { stage = ["prepare", "train-lsd", "train-acrlsd", "predict", "watershed", "agglomerate", "segment", "evaluate"] }
  name       = stage
  dockerfile = "containers/Dockerfile"
  args = merge({
    STAGE   = stage
    TORCH   = contains(["train-lsd", "train-acrlsd", "predict"], stage) ? TORCH : ""
    BACKEND = contains(["train-lsd", "train-acrlsd"], stage) ? "torch" : ""
    VERSION = "dev"
  }, try(jsondecode(IMAGE_ARGUMENTS)[stage], {}))
  tags = ["lsdflow/${stage}:${try(jsondecode(IMAGE_ARGUMENTS)[stage].VERSION, "dev")}"]
}
