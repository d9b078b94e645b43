"""For SGLANG_EXTERNAL_MODEL_PACKAGE: with it SGLang leaves the import of its own 200 models until one is asked for."""
